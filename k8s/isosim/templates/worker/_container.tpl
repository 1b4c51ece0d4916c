{{/* Shared by the worker and the init container that registers the remote encoder. */}}
{{- define "isosim.workerContainer" -}}
image: {{ include "isosim.image" (dict "root" . "target" "worker") }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- include "isosim.securityContext" . | nindent 2 }}
envFrom:
  - configMapRef: {name: {{ include "isosim.fullname" . }}}
env:
  - {name: HOME, value: /tmp}
  - {name: ISOSIM_DRAIN_SECONDS, value: {{ max 1 (sub (int .Values.worker.terminationGracePeriodSeconds) 15) | quote }}}
  - {name: ISOSIM_THREADS, value: {{ .Values.worker.threads | quote }}}
  {{- include "isosim.redisEnv" . | nindent 2 }}
  {{- include "isosim.bucketEnv" . | nindent 2 }}
  {{- with .Values.worker.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources: {{- toYaml .Values.worker.resources | nindent 2 }}
volumeMounts:
  {{- include "isosim.volumeMounts" . | nindent 2 }}
  {{- with .Values.worker.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
