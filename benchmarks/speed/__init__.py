"""Speed and memory against other implementations."""
