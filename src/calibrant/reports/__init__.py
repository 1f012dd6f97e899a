"""How results look: text, pages, figures and plots of numbers that others have computed. It measures nothing."""
