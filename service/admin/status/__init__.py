"""The live status page: what it shows, how it hears of it, and the page itself."""
