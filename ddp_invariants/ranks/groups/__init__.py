"""Process groups: how ranks communicate, on which device, and how collectives are observed."""
