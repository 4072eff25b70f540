"""The live status page: its figures (readings, collector), its listeners (broadcaster), its document (page)."""
