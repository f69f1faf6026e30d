"""One public function per command. `import labelwise as lw` offers all of them: `lw.train`, `lw.evaluate`, ..."""
