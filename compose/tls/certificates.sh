#!/usr/bin/env bash
# Makes what the servers of compose.tls.yaml show and check: an authority, certificates, tokens and rights.
#
#   certificates.sh make       what is not there yet (the service `certificates` does this at each `up`)
#   certificates.sh renew      new certificates for all servers
#   certificates.sh authority  another authority; the old one is trusted, too, until `forget`
#   certificates.sh forget     only the newest authority is trusted
#
# Servers read a changed file again by themselves. Each file is replaced in one step, and a key is in its certificate's file.
set -euo pipefail
umask 077
cd /etc/rollbook # authority: only here; tls: for servers; monitor: for Prometheus.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)

quietly() { # COMMAND…: what it says is shown if it fails.
    "$@" 2> "$work/said" || {
        cat "$work/said" >&2
        return 1
    }
}

# put FILE MODE: from standard input, in one step.
put() {
    cat > "$1.new"
    chmod "$2" "$1.new"
    mv "$1.new" "$1"
}

trust() { # What servers and Prometheus trust.
    put tls/ca.pem 444 < "$1"
    put monitor/ca.pem 444 < "$1"
}

make_authority() {
    # Two authorities must not have one name.
    quietly openssl req -x509 "${new_key[@]}" -days 3650 -subj "/CN=rollbook $(openssl rand -hex 4)" \
        -addext keyUsage=critical,keyCertSign,cRLSign -keyout "$work/ca.key" -out "$work/ca.pem"
    if [[ -e tls/ca.pem ]]; then
        cat "$work/ca.pem" tls/ca.pem > "$work/both.pem"
        trust "$work/both.pem"
    else
        trust "$work/ca.pem"
    fi
    cat "$work/ca.pem" "$work/ca.key" | put authority/authority.pem 400
}

issue() { # SERVICE NAMES
    quietly openssl req "${new_key[@]}" -subj "/CN=$1" -addext "subjectAltName=$2" \
        -keyout "$work/$1.key" -out "$work/$1.csr"
    quietly openssl x509 -req -in "$work/$1.csr" -copy_extensions copy -days "${CERTIFICATE_DAYS:-365}" \
        -CA authority/authority.pem -CAkey authority/authority.pem -out "$work/$1.pem"
    cat "$work/$1.pem" "$work/$1.key" | put "tls/$1.pem" 400
}

issue_all() {
    local bookie
    for bookie in bookie-1 bookie-2 bookie-3; do
        issue $bookie "DNS:$bookie"
    done
    # One name for all replicas. From the host they are reached at 127.0.0.1.
    issue log DNS:log,DNS:localhost,IP:127.0.0.1
    issue recovery DNS:recovery,DNS:localhost,IP:127.0.0.1
}

add() { # NAME RIGHTS: who may do what, in access.toml; prints the token.
    rollbook access add "$@" --file tls/access.toml
}

case ${1:-} in
renew | authority | forget)
    if [[ ! -e authority/authority.pem ]]; then
        echo "there is no authority yet: run \`certificates.sh make\` first, or \`docker compose up\`" >&2
        exit 2
    fi
    ;;
esac

case ${1:-} in
make)
    [[ -e authority/authority.pem ]] || make_authority
    [[ -e tls/recovery.pem ]] || issue_all # The last one that is made.
    [[ -e tls/servers.token ]] || openssl rand -hex 32 | put tls/servers.token 400
    # The last line of each is there once the right is given: what was broken off is made again.
    if [[ ! -e tls/example.token ]]; then
        rm -f tls/access.toml
        add monitor --monitor | put monitor/monitor.token 444
        put tls/monitor.token 400 < monitor/monitor.token
        add admin --admin '*' --read '*' --append '*' --operate | put tls/admin.token 400
        add example --admin 'default/example*' --read 'default/example*' --append 'default/example*' |
            put tls/example.token 400
    fi
    ;;
renew) issue_all ;;
authority) make_authority ;;
forget)
    openssl x509 -in authority/authority.pem -out "$work/ca.pem"
    for each in bookie-1 bookie-2 bookie-3 log recovery; do
        if ! openssl verify -CAfile "$work/ca.pem" "tls/$each.pem" > /dev/null 2>&1; then
            echo "tls/$each.pem is of an older authority, and would be refused: run \`certificates.sh renew\` first" >&2
            exit 2
        fi
    done
    trust "$work/ca.pem"
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
