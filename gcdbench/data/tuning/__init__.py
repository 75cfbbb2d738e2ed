"""Problems on which settings are chosen without any label that the benchmark hides."""
