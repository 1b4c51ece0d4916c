{{/* What API and worker pods share: the same volume, the same rights, the same ways to Redis. */}}

{{- define "isosim.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ .Values.podSecurity.runAsUser }}
runAsGroup: {{ .Values.podSecurity.runAsGroup }}
fsGroup: {{ .Values.podSecurity.fsGroup }}
# Walking over a large store at every start would take minutes.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "isosim.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The service has nothing to ask of the cluster; and a Service named isosim would set ISOSIM_PORT. */}}
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

{{/* ISOSIM_REDIS_URL from a Secret; of the own Redis the password alone, which the kubelet puts into the URL. */}}
{{- define "isosim.redisEnv" -}}
{{- if eq .Values.redis.mode "own" -}}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {{ .Values.redis.own.passwordSecret | toJson }}
- name: ISOSIM_REDIS_URL
  value: redis://:$(REDIS_PASSWORD)@{{ include "isosim.fullname" . }}-redis:6379/0
{{- else if eq .Values.redis.mode "external" -}}
- name: ISOSIM_REDIS_URL
  valueFrom:
    secretKeyRef: {{ .Values.redis.external.urlSecret | toJson }}
{{- end -}}
{{- end }}

{{- define "isosim.volumes" -}}
- name: model-store
  {{- if .Values.modelStore.ephemeral }}
  emptyDir: {}
  {{- else }}
  persistentVolumeClaim: {claimName: {{ include "isosim.claim" . }}}
  {{- end }}
- name: tmp
  emptyDir: {}
{{- end }}

{{- define "isosim.volumeMounts" -}}
- {name: model-store, mountPath: /model_store}
# The only other place that can be written: uploads on their way, caches of libraries (HOME is there).
- {name: tmp, mountPath: /tmp}
{{- end }}

{{/* A number of a dict as the service reads it: 67108864, where a template would print 6.7108864e+07. */}}
{{- define "isosim.setting" -}}
{{ kindIs "string" . | ternary . (toJson .) }}
{{- end }}
