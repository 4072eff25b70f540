"""From images to archives, in stages with files between them."""
