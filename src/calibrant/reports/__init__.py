"""How results look: text, JSON, pages, figures and plots of numbers that others have computed. It never measures."""

from calibrant.reports.document import *
from calibrant.reports.result import Reportable as Reportable
