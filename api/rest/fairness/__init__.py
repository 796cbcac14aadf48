"""Fairness among the clients of HTTP: a slow or greedy client neither delays the others nor fills the memory.

    loop_yield_queue.py         requests that arrive together begin one at a time
    new_reader_pacing.py       a client is sent one piece at a time until it has shown that it reads
    reader_turns.py            followers that are behind read in turns, a few at a time
    response_memory.py   large responses hold a bounded number of bytes together

These files delay a response, refuse it (`Overloaded`) or cut it off, and never change its content. To
delete the folder, delete with it:

    http_connection.py the queue of first requests (`line`)
    request_limits.py  the wrapper around each response
    owner_routing.py   `newcomers`, `rests` and the turns; without them, `follow` watches the log directly
    event_streams.py   the waits of new clients, and the bound of unsent records. `send_within`, a send
                       with a time-out, moves here
    record_range_response.py  the waits of new clients, and the report of the bytes it holds

`docs/notes/2026-11-27-http-under-attack.md` has the measurements without these bounds.
"""
