{{- define "rollbook.name" -}}
{{- if contains "rollbook" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-rollbook{{ end }}
{{- end }}

{{- /* Called with (list $ "bookie"). */}}
{{- define "rollbook.selector" -}}
app.kubernetes.io/name: rollbook
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "rollbook.labels" -}}
{{ include "rollbook.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{- define "rollbook.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "rollbook.metadata" -}}
{{- if .Values.zookeeper.enabled -}}
zk://{{ include "rollbook.name" . }}-zookeeper/ledgers
{{- else -}}
{{ .Values.metadata.url }}
{{- end -}}
{{- end }}

{{- define "rollbook.has_tls" -}}
{{- if .Values.tls.secret -}}
yes
{{- end -}}
{{- end }}

{{- define "rollbook.bookie_port" -}}
{{ ternary 3182 3181 (eq (include "rollbook.has_tls" .) "yes") }}
{{- end }}

{{- /* What the schema cannot say in a sentence. */}}
{{- define "rollbook.check" -}}
{{- $url := .Values.metadata.url -}}
{{- if and $url .Values.zookeeper.enabled -}}
{{- fail "metadata.url and zookeeper.enabled exclude each other: leave one of them out" -}}
{{- else if and (not $url) (not .Values.zookeeper.enabled) -}}
{{- fail "metadata.url is empty: set it to your ZooKeeper, as in zk://zk1,zk2,zk3/ledgers, or set zookeeper.enabled=true for a trial" -}}
{{- else if and $url (not (regexMatch "^zk://[^/ ]+(/[^ ]*)?$" $url)) -}}
{{- fail (printf "metadata.url is %q, which is not the URL of a ZooKeeper: set it as in zk://zk1,zk2,zk3/ledgers" $url) -}}
{{- end -}}
{{- if ne (not .Values.tls.secret) (not .Values.tls.access) -}}
{{- fail "tls.secret and tls.access go together: set both, or none" -}}
{{- end -}}
{{- if and .Values.recovery.callbackHosts (not .Values.tls.secret) -}}
{{- fail "recovery.callbackHosts needs tls.secret and tls.access: callbacks are made over HTTP management, which is served only with TLS" -}}
{{- end -}}
{{- range $name, $volume := dict "bookie.journal" .Values.bookie.journal "bookie.ledgers" .Values.bookie.ledgers "zookeeper.storage" .Values.zookeeper.storage -}}
{{- if not (regexMatch "^[1-9][0-9]*(Mi|Gi|Ti|M|G|T)$" $volume.size) -}}
{{- fail (printf "%s.size is %q: set a whole number and a unit, as in 10Gi" $name $volume.size) -}}
{{- end -}}
{{- end -}}
{{- range $kind := list "bookie" "log" "recovery" -}}
{{- range $name, $_ := (index $.Values $kind).env -}}
{{- if not (regexMatch "^ROLLBOOK_[A-Z0-9_]+$" $name) -}}
{{- fail (printf "%s.env has %q, which is not the name of a setting: names are as in ROLLBOOK_LOG_LEVEL" $kind $name) -}}
{{- else if has $name (list "ROLLBOOK_METADATA" "ROLLBOOK_LISTEN" "ROLLBOOK_ADVERTISE" "ROLLBOOK_HTTP" "ROLLBOOK_REST" "ROLLBOOK_BOOKIE_ID" "ROLLBOOK_SERVER_NAME" "ROLLBOOK_NAME" "ROLLBOOK_JOURNAL_DIR" "ROLLBOOK_LEDGER_DIR" "ROLLBOOK_CALLBACK_HOSTS") -}}
{{- fail (printf "%s.env has %s, which the chart sets: leave it out" $kind $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "rollbook.pod_security" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "rollbook.container_security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- /* What pods of a kind have in common; called with (list $ "bookie"). */}}
{{- define "rollbook.pod" -}}
{{- $ := index . 0 }}{{ $kind := index . 1 }}{{ $values := index $.Values $kind -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "rollbook.pod_security" $ | nindent 2 }}
{{- with $.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ $.Values.spread.topologyKey }}
    whenUnsatisfiable: {{ $.Values.spread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "rollbook.selector" . | nindent 8 }}
{{- range $name := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $values $name }}
{{ $name }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "rollbook.container" -}}
{{- $ := index . 0 }}{{ $kind := index . 1 }}{{ $values := index $.Values $kind -}}
name: {{ $kind }}
image: {{ include "rollbook.image" $ | quote }}
imagePullPolicy: {{ $.Values.image.pullPolicy }}
securityContext:
  {{- include "rollbook.container_security" $ | nindent 2 }}
resources:
  {{- toYaml $values.resources | nindent 2 }}
env:
  - name: ROLLBOOK_METADATA
    value: {{ include "rollbook.metadata" $ | quote }}
  - name: POD_NAME
    valueFrom: { fieldRef: { fieldPath: metadata.name } }
  - name: POD_NAMESPACE
    valueFrom: { fieldRef: { fieldPath: metadata.namespace } }
  {{- range $name, $value := $values.env }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
{{- end }}

{{- define "rollbook.mounts" -}}
- { name: tmp, mountPath: /tmp }
{{- if include "rollbook.has_tls" . }}
- { name: tls, mountPath: /etc/rollbook/tls, readOnly: true }
- { name: access, mountPath: /etc/rollbook/access, readOnly: true }
{{- end }}
{{- end }}

{{- define "rollbook.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if include "rollbook.has_tls" . }}
- name: tls
  secret: { secretName: {{ .Values.tls.secret }}, defaultMode: 0440 }
- name: access
  secret: { secretName: {{ .Values.tls.access }}, defaultMode: 0440 }
{{- end }}
{{- end }}

{{- /* Called with (list $ PORT PATH-of-readiness PATH-of-liveness attempts-at-start). */}}
{{- define "rollbook.probes" -}}
{{- $ := index . 0 }}{{ $scheme := ternary "HTTPS" "HTTP" (eq (include "rollbook.has_tls" $) "yes") -}}
startupProbe:
  httpGet: { path: {{ index . 3 }}, port: {{ index . 1 }}, scheme: {{ $scheme }} }
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ index . 4 }}
readinessProbe:
  httpGet: { path: {{ index . 2 }}, port: {{ index . 1 }}, scheme: {{ $scheme }} }
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: { path: {{ index . 3 }}, port: {{ index . 1 }}, scheme: {{ $scheme }} }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{- /* As many as that may be away at a time; called with (list $ "bookie"). */}}
{{- define "rollbook.disruptions" -}}
{{- $ := index . 0 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "rollbook.name" $ }}-{{ index . 1 }}
  labels:
    {{- include "rollbook.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "rollbook.selector" . | nindent 6 }}
{{- end }}
