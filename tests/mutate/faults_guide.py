"""Faults in the pages for users, and in what they quote."""
from fault import Fault

FAULTS = [
    Fault('a message is not the one of the page', 'src/cluster/link.c',
          'it has not answered for %.1f s',
          'it did not answer for %.1f s',
          ['guide.Static']),
    Fault('a page names an option that does not exist', 'docs/FAQ.md',
          '`--experts keep` keeps every bit',
          '`--expert keep` keeps every bit',
          ['guide.Static']),
    Fault('a page has a command that does not exist', 'docs/FAQ.md',
          'flashmoe verify packed.fmoe',
          'flashmoe validat packed.fmoe',
          ['guide.Faq']),
    Fault('a page has another setting than launch', 'docs/CLIENTS.md',
          'wire_api = "responses"',
          'wire_api = "chat"',
          ['guide.Settings', 'guide.Clients']),
    Fault('a page quotes another status of a download', 'docs/TROUBLESHOOTING.md',
          'the server answers 404, Repository not found',
          'the server says 404, Repository not found',
          ['guide.Troubleshooting']),
    Fault('a prediction of a page is stale', 'docs/START.md',
          '| 46.3 GB | 14.5-16.3 tok/s |',
          '| 46.3 GB | 17.5-19.3 tok/s |',
          ['guide.fit.few']),
]
