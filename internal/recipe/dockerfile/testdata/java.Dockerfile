FROM maven:3.9-eclipse-temurin-21 AS build
WORKDIR /build
COPY pom.xml .
RUN ["mvn", "-B", "dependency:go-offline"]
COPY src src
RUN mvn -B package -DskipTests

FROM eclipse-temurin:21-jre
RUN groupadd -r app && useradd -r -g app app
WORKDIR /app
COPY --from=0 --chown=app:app /build/target/*.jar app.jar
USER app:app
ENV JAVA_OPTS="-Xms64m -Xmx256m"
EXPOSE 8080/tcp 9090
ENTRYPOINT exec java $JAVA_OPTS -jar app.jar
