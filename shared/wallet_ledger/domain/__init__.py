"""The rules of the books: values and pure functions, standard library only."""
