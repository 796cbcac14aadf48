#!/bin/sh
# Appends each line of its input to a log, exactly once, whoever dies meanwhile: a server, the network, this script.
#
#   append_exactly_once.sh 'http://a:7480 http://b:7480' NAMESPACE/LOG PRODUCER NEXT-FILE < LINES
#
# Line N, from 0, is batch N of PRODUCER. Its request is made again and again, of one server after the other, until one says
# that the line is on disk; the log knows it by its number, and has it once. NEXT-FILE keeps the number of the first line of
# which nobody has said so: started again with the same input, the script goes on there. Without the file it asks for each
# line anew, and the log has them all once still. Tokens, certificates and the like go into ~/.curlrc.
set -eu
servers=$1 path=/v1/namespaces/${2%%/*}/logs/${2#*/}/records producer=$3 next_file=$4

answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

append() { # NUMBER LINE
    while :; do
        for server in $servers; do
            status=$(printf '%s' "$2" | curl -sS --max-time 10 -o "$answer" -w '%{http_code}' "$server$path" \
                -H "Producer-Id: $producer" -H 'Producer-Epoch: 0' -H "Producer-Seq: $1" \
                -H 'Content-Type: application/octet-stream' -H 'Log-Forward: auto' --data-binary @-) || status=000
            case $status in
                200 | 201) return ;;
                000 | 307 | 408 | 429 | 50[234]) sleep 0.1 ;; # Nobody there, or nobody knows: the same again.
                *) grep -q '"DUPLICATE_TOO_OLD"' "$answer" && return # It is in the log.
                    cat "$answer" >&2
                    exit 1 ;;
            esac
        done
    done
}

next=$(cat "$next_file" 2>/dev/null || echo 0) number=0
next=${next:-0} # Empty: the machine died when it was new.
[ "$next" -ge 0 ] 2>/dev/null || { echo "$next_file: no number is in it" >&2; exit 1; }
while IFS= read -r line || [ -n "$line" ]; do
    if [ "$number" -ge "$next" ]; then
        append "$number" "$line"
        echo $((number + 1)) >"$next_file.new"
        mv "$next_file.new" "$next_file"
    fi
    number=$((number + 1))
done
