"""Web inspector of a record: its pages, its JSON API, and the application that serves both."""
