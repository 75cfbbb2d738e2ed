"""K-means: semi-supervised, balanced, seeding and assignment."""
