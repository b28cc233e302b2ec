"""Fast twins: the same arithmetic as elsewhere in the house, in a form made for one kind of machine."""
