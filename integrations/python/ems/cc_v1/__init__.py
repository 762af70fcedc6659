"""Drop-in surface, second generation: layouts are registered, blocks are named by hashes."""
