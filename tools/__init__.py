"""What makes files that tacit ships."""
