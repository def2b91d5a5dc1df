"""The full forms of chapter 07."""
