"""Reports: one self-contained HTML file that opens offline and reads top to bottom as an answer."""

from calibrant.report.assessment import assessment_report
from calibrant.report.html import Section, page
from calibrant.report.sections import study_report

__all__ = ["Section", "assessment_report", "page", "study_report"]
