"""What changes the weights: steps, epochs, and what a training keeps to go on where it was."""
