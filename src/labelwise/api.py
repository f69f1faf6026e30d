"""One public function per command."""
