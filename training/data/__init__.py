"""From labelled images, wherever they are, to arrays of one shape in a run."""
