"""A compact DDP and a compact distributed sampler, to read in one sitting and to be certified by the suite."""
