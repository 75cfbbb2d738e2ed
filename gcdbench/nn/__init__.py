"""Neural parts shared by the methods: the backbone and the heads."""
