{{/* The worker's pod; worker.podTemplate is merged into it. */}}
{{- define "isosim.workerPod" -}}
metadata:
  {{- include "isosim.marks" (dict "root" . "component" "worker" "annotations" (include "isosim.checksum" . | fromYaml)) | nindent 2 }}
spec:
  serviceAccountName: {{ include "isosim.serviceAccount" . }}
  {{- include "isosim.isolation" . | nindent 2 }}
  {{- include "isosim.pullSecrets" . | nindent 2 }}
  securityContext: {{- include "isosim.podSecurityContext" . | nindent 4 }}
  # On SIGTERM a worker takes no new job. It gives its own back after ISOSIM_DRAIN_SECONDS; if it is killed, others notice.
  terminationGracePeriodSeconds: {{ .Values.worker.terminationGracePeriodSeconds }}
  {{- with .Values.remoteEncoder }}
  {{- if .url }}
  initContainers:
    # Registering the same encoder again only checks that the server still has this model, and updates its address and
    # key. Without its encoder a worker could not compute anything, so it waits here.
    - name: register-encoder
      image: {{ include "isosim.image" (dict "root" $ "target" "worker") }}
      imagePullPolicy: {{ $.Values.image.pullPolicy }}
      command:
        - isosim
        - encoder
        - add
        - {{ $.Values.encoder | quote }}
        - --url
        - {{ .url | quote }}
        - --model
        - {{ .model | quote }}
        {{- with include "isosim.encoderKeyFile" $ }}
        - --key-file
        - {{ . }}
        {{- end }}
        {{- with .prompt }}
        - --prompt
        - {{ . | quote }}
        {{- end }}
        - --max-length
        - {{ int64 .maxLength | quote }}
      securityContext: {{- include "isosim.securityContext" $ | nindent 8 }}
      resources: {{- toYaml $.Values.worker.resources | nindent 8 }}
  {{- end }}
  {{- end }}
  containers:
    # A worker serves no requests, so that there is no readiness. The probe asks whether its loop goes on, neither Redis nor
    # the model store: when these are down, restarted workers would lose hours of work. A job of a worker that hangs goes on
    # at another one long before.
    - name: worker
      image: {{ include "isosim.image" (dict "root" . "target" "worker") }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [isosim, worker]
      livenessProbe:
        exec: {command: [isosim, worker, --check]}
        initialDelaySeconds: 30
        periodSeconds: 60
        timeoutSeconds: 20
        failureThreshold: 3
      securityContext: {{- include "isosim.securityContext" . | nindent 8 }}
      envFrom:
        - configMapRef: {name: {{ include "isosim.fullname" . }}}
      env:
        - {name: HOME, value: /tmp}
        - {name: ISOSIM_DRAIN_SECONDS, value: {{ max 1 (sub (int .Values.worker.terminationGracePeriodSeconds) 15) | quote }}}
        - {name: ISOSIM_THREADS, value: {{ .Values.worker.threads | quote }}}
        {{- include "isosim.redisEnv" . | nindent 8 }}
        {{- include "isosim.bucketEnv" . | nindent 8 }}
      resources: {{- toYaml .Values.worker.resources | nindent 8 }}
      volumeMounts:
        {{- include "isosim.volumeMounts" . | nindent 8 }}
  volumes:
    {{- include "isosim.volumes" . | nindent 4 }}
{{- end }}
