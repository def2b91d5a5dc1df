"""Chapter 00: the first ranks, the first messages, and one matrix product split in three ways.

What fills a device in one training step (`memory`); sending, receiving and the first deadlock (`first_messages`); a sum
made of messages (`to_everyone`); Y = XW split by rows of X (`by_data`), by columns of W (`by_columns`) and by rows of W
(`by_rows`), forward and backward.
"""
