{{/* The pod of the release's own Redis; redis.own.podTemplate is merged into it. Without labels of versions, so that a new version
     of the chart does not restart it and empty the cache. */}}
{{- define "isosim.redisPod" -}}
metadata:
  labels:
    {{- include "isosim.selector" . | nindent 4 }}
    app.kubernetes.io/component: redis
    {{- with .Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.commonAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "isosim.isolation" . | nindent 2 }}
  {{- include "isosim.pullSecrets" . | nindent 2 }}
  securityContext:
    runAsNonRoot: true
    {{- if .Values.podSecurity.runAsUser }}
    runAsUser: 10002
    runAsGroup: 10002
    fsGroup: 10002  # may read the password
    {{- end }}
    seccompProfile: {type: RuntimeDefault}
  terminationGracePeriodSeconds: 10
  containers:
    - name: redis
      image: {{ .Values.redis.own.image }}
      imagePullPolicy: IfNotPresent
      # The password comes from a file, and through standard input: arguments and environment of a process are seen by others. In
      # hexadecimal, because it may contain quotes and spaces.
      command: [sh, -ec]
      args:
        - |
          password=$(od -An -v -tx1 /etc/redis/password | tr -d '\n' | sed 's/ /\\x/g')
          exec redis-server - "$@" <<END
          requirepass "$password"
          END
        - redis-server
        - --port
        - "6379"
        - --maxmemory
        - {{ .Values.redis.own.maxmemory }}
        # Vectors may be evicted (isosim doctor checks this).
        - --maxmemory-policy
        - volatile-lru
        - --save
        - ""
        - --appendonly
        - "no"
        - --dir
        - /tmp
      securityContext: {{- include "isosim.securityContext" . | nindent 8 }}
      ports:
        - {name: redis, containerPort: 6379, protocol: TCP}
      # An error answer (loading, a wrong password) is a failure.
      readinessProbe:
        exec: {command: [sh, -ec, 'REDISCLI_AUTH=$(cat /etc/redis/password) exec redis-cli -e ping']}
        periodSeconds: 5
        timeoutSeconds: 2
      # Checks only that the port accepts connections, so that a busy Redis is not restarted with an empty cache.
      livenessProbe:
        tcpSocket: {port: redis}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      resources: {{- toYaml .Values.redis.own.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: password, mountPath: /etc/redis, readOnly: true}
  volumes:
    - name: tmp
      emptyDir: {}
    - name: password
      secret:
        secretName: {{ .Values.redis.own.passwordSecret.name }}
        items: [{key: {{ .Values.redis.own.passwordSecret.key }}, path: password}]
        defaultMode: 0440
        optional: false  # the pod waits until the Secret exists
{{- end }}
