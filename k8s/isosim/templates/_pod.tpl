{{/* Shared by API and worker pods: volumes, security contexts, access to Redis and to a bucket, the operator's own fields. */}}

{{/* Merges the operator's fields into a manifest, in place. Takes a list of both. Maps are merged by key, lists of named entries by
     name (mounts by mountPath, spreads by topologyKey); other entries are added, also to `command` and `args`, init containers before
     the chart's own. null removes a field, such as the other source of a volume. */}}
{{- define "isosim.patch" -}}
{{- $ours := index . 0 -}}
{{- range $field, $theirs := index . 1 -}}
{{- $here := get $ours $field -}}
{{- if kindIs "invalid" $theirs -}}
{{- $_ := unset $ours $field -}}
{{- else if and (kindIs "map" $here) (kindIs "map" $theirs) -}}
{{- include "isosim.patch" (list $here $theirs) -}}
{{- else if and (kindIs "slice" $here) (kindIs "slice" $theirs) -}}
{{- $added := list -}}
{{- range $entry := $theirs -}}
{{- $known := false -}}
{{- if kindIs "map" $entry -}}
{{- $id := hasKey $entry "mountPath" | ternary "mountPath" (hasKey $entry "topologyKey" | ternary "topologyKey" "name") -}}
{{- range $one := $here -}}
{{- if and (hasKey $entry $id) (eq (get $one $id) (get $entry $id)) -}}
{{- include "isosim.patch" (list $one $entry) -}}
{{- $known = true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $known -}}
{{- $added = append $added $entry -}}
{{- end -}}
{{- end -}}
{{- $_ := set $ours $field (eq $field "initContainers" | ternary (concat $added $here) (concat $here $added)) -}}
{{- else -}}
{{- $_ := set $ours $field $theirs -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A pod's template with the operator's fields, as YAML. Takes the root and the component: api or worker, whose first container
     has that name. The chart's own init containers see its environment and its mounts. */}}
{{- define "isosim.podTemplate" -}}
{{- $component := index . 1 -}}
{{- $template := include (printf "isosim.%sPod" $component) (index . 0) | fromYaml -}}
{{- with $template.Error -}}{{- fail . -}}{{- end -}}
{{- include "isosim.patch" (list $template (index (index . 0).Values $component).podTemplate) -}}
{{- $main := first $template.spec.containers -}}
{{- range $one := $template.spec.initContainers -}}
{{- if has $one.name (list "await-encoder" "register-encoder") -}}
{{- range list "env" "envFrom" "volumeMounts" -}}
{{- $_ := set $one . (get $main .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $template -}}
{{- end }}

{{- define "isosim.podSecurityContext" -}}
runAsNonRoot: true
{{- with .Values.podSecurity.runAsUser }}
runAsUser: {{ int64 . }}
{{- end }}
{{- with .Values.podSecurity.runAsGroup }}
runAsGroup: {{ int64 . }}
{{- end }}
{{- with .Values.podSecurity.fsGroup }}
fsGroup: {{ int64 . }}
{{- end }}
# Changing the owner of every file of a large store at each start would take minutes.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "isosim.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Settings are read at the start, so a change of them must restart the pod. (The running server re-reads keys.) */}}
{{- define "isosim.checksum" -}}
checksum/settings: {{ include (print .Template.BasePath "/configmap.yaml") . | sha256sum }}
{{- end }}

{{/* No pod calls the cluster's API, and only pods that use the model store get the release's service account, which may have a
     bucket's role. Service links are off because a Service named isosim would set ISOSIM_PORT. */}}
{{- define "isosim.isolation" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- end }}

{{- define "isosim.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* URL of Redis, and separately its password, which may contain any character. */}}
{{- define "isosim.redisEnv" -}}
{{- if eq .Values.redis.mode "own" -}}
- name: ISOSIM_REDIS_URL
  value: redis://{{ include "isosim.fullname" . }}-redis:6379/0
- name: ISOSIM_REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {{ .Values.redis.own.passwordSecret | toJson }}
{{- else if eq .Values.redis.mode "external" -}}
- name: ISOSIM_REDIS_URL
  valueFrom:
    secretKeyRef: {{ .Values.redis.external.urlSecret | toJson }}
{{- with .Values.redis.external.passwordSecret }}
{{- if .name }}
- name: ISOSIM_REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {{ toJson . }}
{{- end }}
{{- end }}
{{- end -}}
{{- end }}

{{/* "true" where the release makes the model store. */}}
{{- define "isosim.init" -}}
{{- $when := .Values.modelStore.init -}}
{{- if and (not .Values.modelStore.ephemeral) (or (eq $when "always") (and (eq $when "install") .Release.IsInstall)) -}}true{{- end -}}
{{- end }}

{{/* "true" where pods use a bucket: for the store, or for its backups. */}}
{{- define "isosim.bucket" -}}
{{- if or .Values.modelStore.bucket.url (contains "://" .Values.backup.destination) -}}true{{- end -}}
{{- end }}

{{/* A bucket's access key, in the variables that AWS's libraries read. */}}
{{- define "isosim.bucketEnv" -}}
{{- with .Values.modelStore.bucket.credentialsSecret -}}
{{- if .name -}}
- name: AWS_ACCESS_KEY_ID
  valueFrom:
    secretKeyRef: {name: {{ .name }}, key: {{ .accessKeyId }}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom:
    secretKeyRef: {name: {{ .name }}, key: {{ .secretAccessKey }}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "isosim.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .Values.modelStore.bucket.url }}
- name: cache
  emptyDir: {sizeLimit: {{ .Values.modelStore.bucket.cacheSize }}}
{{- else }}
- name: model-store
  {{- if .Values.modelStore.ephemeral }}
  emptyDir: {}
  {{- else }}
  persistentVolumeClaim: {claimName: {{ include "isosim.claim" . }}}
  {{- end }}
{{- end }}
{{- with .Values.modelStore.bucket.caSecret.name }}
- name: bucket-ca
  secret: {secretName: {{ . }}, optional: false}
{{- end }}
{{- with .Values.redis.external.caSecret.name }}
- name: redis-ca
  secret: {secretName: {{ . }}, optional: false}
{{- end }}
{{- with .Values.remoteEncoder.keySecret.name }}
- name: encoder-key
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    optional: false  # the pod waits until the Secret exists
{{- end }}
{{- end }}

{{- define "isosim.volumeMounts" -}}
# Uploads in progress and caches of libraries (HOME is here). Only these volumes are writable.
- {name: tmp, mountPath: /tmp}
{{- if .Values.modelStore.bucket.url }}
# The whole folder: with a mount below it, root would own it and other libraries could not write their caches.
- {name: cache, mountPath: /tmp/.cache}
{{- else }}
- {name: model-store, mountPath: /model_store}
{{- end }}
{{- if .Values.modelStore.bucket.caSecret.name }}
- {name: bucket-ca, mountPath: /etc/isosim/bucket, readOnly: true}
{{- end }}
{{- if .Values.redis.external.caSecret.name }}
- {name: redis-ca, mountPath: /etc/isosim/redis, readOnly: true}
{{- end }}
{{- if .Values.remoteEncoder.keySecret.name }}
- {name: encoder-key, mountPath: /etc/isosim/encoder, readOnly: true}
{{- end }}
{{- end }}

{{/* Where the remote encoder's key is mounted; empty if its server needs no key. */}}
{{- define "isosim.encoderKeyFile" -}}
{{- with .Values.remoteEncoder.keySecret -}}
{{- if .name -}}/etc/isosim/encoder/{{ .key }}{{- end -}}
{{- end -}}
{{- end }}

{{/* A setting's value as the service reads it: 67108864, for which a template would print 6.7108864e+07. */}}
{{- define "isosim.setting" -}}
{{ kindIs "string" . | ternary . (toJson .) }}
{{- end }}
