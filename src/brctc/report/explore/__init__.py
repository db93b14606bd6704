"""A page to try risks on: the criterion in JavaScript, on posteriors that come with the page."""
