"""The inspector of a record in the browser: its pages, its JSON API, and the application that serves both."""
