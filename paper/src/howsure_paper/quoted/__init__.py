"""The numbers that pages of documentation quote, generated from committed records.

A page marks each generated block with two comments::

    <!-- generated: NAME -->
    ...
    <!-- end -->

``howsure-paper quote`` replaces the text between them by the text of the block of that name.
"""

from howsure_paper.quoted.attach import ATTACH
from howsure_paper.quoted.blocks import Block, Changes, check_pages, write_pages
from howsure_paper.quoted.incontext import IN_CONTEXT
from howsure_paper.quoted.sentences import SENTENCES
from howsure_paper.quoted.shifts import SHIFTS
from howsure_paper.quoted.tables import TABLES

__all__ = ["BLOCKS", "Changes", "check_pages", "write_pages"]

BLOCKS: dict[str, Block] = {**ATTACH, **TABLES, **SENTENCES, **SHIFTS, **IN_CONTEXT}
