"""A domain on its way to another encoder: which one answers, shadow scoring, thresholds carried over."""
