"""The verb `torchgate tour`: a faulty release is rolled back before the user's eyes."""
