"""The tables: everything that is known of SQS's answers, a row for each fact."""
