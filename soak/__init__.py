"""What takes too long for the tests: many processes at once, for as long as it takes."""
