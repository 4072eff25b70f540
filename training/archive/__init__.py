"""From an exported run to archives in a model store."""
