#!/bin/sh
# A webhook dispatcher: a group and a worker for every customer. Needs a running server, and `webhooks` listening.
#
#   dispatch.sh [URL]     address of the customers, by default http://127.0.0.1:8080
set -eu
url=${1:-http://127.0.0.1:8080}
forebay=${FOREBAY:-forebay}

for customer in solid shaky closed; do
    "$forebay" group create "events/$customer" max_retries=5 backoff.min=200ms backoff.max=1m
done
for number in 1 2 3 4 5; do
    "$forebay" pub events --id "event-$number" "{\"event\": $number}"
done

# Each worker ends after two seconds without work; without --idle it would run for ever.
for customer in solid shaky closed; do
    "$forebay" work "events/$customer" --push "$url/$customer" --rate 50/s --timeout 5s --idle 2s &
done
wait

# The result: the customer `closed` has five parked events, with the reason.
"$forebay" group list events
"$forebay" parked reasons events/closed
