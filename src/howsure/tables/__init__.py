"""Tables: columns to numbers, training, and the fitted table model."""
