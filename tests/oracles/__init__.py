"""Independent implementations: slow, literal, and compared with ours."""
