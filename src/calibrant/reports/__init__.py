"""How results look: text, pages, figures and plots of numbers that others have computed. It measures nothing."""

from calibrant.reports.document import *
from calibrant.reports.result import Result as Result
