"""Scripts that measure; each prints ratios against what a user would otherwise pick."""
