{{/* Shared by API and worker pods: volumes, security contexts, access to Redis and to a bucket. */}}

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

{{/* The service makes no calls to the cluster's API. Service links are off because a Service named isosim would set ISOSIM_PORT. */}}
{{- define "isosim.isolation" -}}
serviceAccountName: {{ include "isosim.serviceAccount" . }}
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
{{- with .Values.modelStore.bucket.caSecret.name }}
- name: bucket-ca
  secret: {secretName: {{ . }}, optional: false}
{{- end }}
{{- else }}
- name: model-store
  {{- if .Values.modelStore.ephemeral }}
  emptyDir: {}
  {{- else }}
  persistentVolumeClaim: {claimName: {{ include "isosim.claim" . }}}
  {{- end }}
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
{{- if .Values.modelStore.bucket.caSecret.name }}
- {name: bucket-ca, mountPath: /etc/isosim/bucket, readOnly: true}
{{- end }}
{{- else }}
- {name: model-store, mountPath: /model_store}
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
