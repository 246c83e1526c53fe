"""What the tests share: clients of both protocols, the digests, and what a row of a table is."""
