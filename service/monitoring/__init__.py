"""What the answers say about the model: drift, the prediction log, signed ids."""
