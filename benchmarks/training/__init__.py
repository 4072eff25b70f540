"""The tables of the design documents, measured on this machine: operators, forms of the network, strategies."""
