"""What a model's versions do in service: where their time goes, and how good their answers are."""
