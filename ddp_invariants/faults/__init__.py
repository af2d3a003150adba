"""What goes wrong in real data parallelism, planted beside what is right: each entry must be told from its host by one rule."""
